"""What text datasets share: reading, sentences and tokens, tags, word numbers, the source of documents."""
