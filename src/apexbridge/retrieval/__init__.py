"""Search: the right skills for a request, by meaning, by words and by past use."""
