"""What an installation does, method by method: a module each, with a Work that satisfies ``provide.work.Work``."""
