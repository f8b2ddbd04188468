"""Turns of a conversation, in few words, for tests of chats."""

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "ü": "é"}}}


def user(content: object = "q", **more: object) -> dict:
    return {"role": "user", "content": content, **more}


def bot(content: object = "a", **more: object) -> dict:
    return {"role": "assistant", "content": content, **more}


def tool(**more: object) -> dict:
    return {"role": "tool", "content": "3", **more}


def calling(*calls: object) -> dict:
    return bot(None, tool_calls=list(calls))
