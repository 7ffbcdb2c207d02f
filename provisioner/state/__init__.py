"""What lasts: intent, memory, answers, marks and locks. Only who opens it, and commands about files, know that it is
files; nothing in here knows a cloud."""
