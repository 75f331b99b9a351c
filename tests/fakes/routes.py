"""The client routes."""

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
EMBEDDINGS = "/v1/embeddings"
TOKENIZE = "/tokenize"

GENERATING = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, EMBEDDINGS)  # or embedding: they take a slot
