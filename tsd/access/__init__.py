"""Who may do what: roles, and how somebody shows to have them. Nothing here knows sockets or requests."""
