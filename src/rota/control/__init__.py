"""The control floor: who asks (`principal`), and the services as they answer him (`local`), in the API's documents."""
