"""Engines: answers in, facts out. Those of llama.cpp and vLLM are recorded; those of ds4, SGLang and OpenAI
are made from the texts and formats in their sources and documentation."""
