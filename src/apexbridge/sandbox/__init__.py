"""Where strangers' scripts run: walls, limits, a supervisor, and results that say what held."""
