"""Write every dashboard to its file."""

from grafana.files import FOLDER, texts

for name, text in texts().items():
    (FOLDER / name).write_text(text)
