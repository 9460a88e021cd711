-- Which programs work here besides those of this version: a program older than the schema asks, and starts or refuses.
ALTER TABLE rota.cluster ADD COLUMN works_from integer;
COMMENT ON COLUMN rota.cluster.works_from IS 'Programs that know the schema up to this version, or a later one, work on it.';
