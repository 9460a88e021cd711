"""The only floor that knows PostgreSQL. Statements live in sql/, the schema in migrations/."""
