"""What lasts: intent, memory, answers, marks and locks. Nothing outside knows that
these are files, and nothing in here knows a cloud."""
