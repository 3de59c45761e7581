"""Plans: what a transform or a product needs, as plain read-only data; no device is touched here."""
