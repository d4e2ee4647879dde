"""HTTP below the routes: connections, authentication, sessions, headers and request metrics."""
