"""Conversations: rows to messages, messages to text, and which of it the assistant wrote."""

from nemotron_data.chat.masks import mask_by_offsets
from nemotron_data.chat.rows import ChatFields, Message, is_used_in, to_messages, validate_messages
from nemotron_data.chat.template import ADD_MARKS, ChatTemplate, Span, find_template, template_file

__all__ = [
    "ADD_MARKS",
    "ChatFields",
    "ChatTemplate",
    "Message",
    "Span",
    "find_template",
    "is_used_in",
    "mask_by_offsets",
    "template_file",
    "to_messages",
    "validate_messages",
]
