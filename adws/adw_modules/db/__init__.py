"""The database: connections, schema, migrations, lists."""
