"""What alembic runs for each command: the revisions, on the connection and in the transaction of `migrate`."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
