"""An endpoint for completions, as clients of the OpenAI API know it, in front of a serving loop.

``bodies`` reads requests within ``limits``, ``asked`` what they ask for, ``answers`` has it from
the loop, ``app`` says it over HTTP (Starlette), ``connections`` and ``running`` listen on the
loopback address (Uvicorn; extra ``serve``).
"""
