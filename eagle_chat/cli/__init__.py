"""The commands. Only this package and the web interface write for people; nobody imports them."""
