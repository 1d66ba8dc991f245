"""Who somebody is: keys, tokens, and the files that have both."""
