"""Pictures as samples: read, scaled, and made what a processor's own file says."""
