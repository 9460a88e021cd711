"""The documents of the API: what is asked and answered over HTTP, in the vocabulary's words.

Shared by the server and its clients. Instants are ISO 8601 with a zone, durations seconds.
"""
