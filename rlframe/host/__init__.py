"""The plugin host: finding plugins, what they offer, and importing what was chosen."""
