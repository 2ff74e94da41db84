"""An endpoint for completions, as clients of the OpenAI API know it, in front of a serving loop.

``asked`` reads what a client asks for, ``app`` answers over HTTP (Starlette), ``running`` listens
on the loopback address (Uvicorn; extra ``serve``).
"""
