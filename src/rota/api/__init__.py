"""The HTTP API: it parses questions, asks the control protocol or a service, and answers in the wire's documents."""
