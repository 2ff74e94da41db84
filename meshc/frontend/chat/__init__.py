"""Conversations, and the templates by which models take them.

``conversation`` reads messages, ``template`` finds the template that lies with the weights,
``rendering`` fills it in by ``sandbox``, a program that runs in a process of its own.
"""

from meshc.frontend.chat.conversation import Conversation, conversation_of, read_conversation
from meshc.frontend.chat.rendering import Rendered, render_conversation, said_now
from meshc.frontend.chat.template import ChatTemplate, find_chat_template

__all__ = [
    "ChatTemplate",
    "Conversation",
    "Rendered",
    "conversation_of",
    "find_chat_template",
    "read_conversation",
    "render_conversation",
    "said_now",
]
