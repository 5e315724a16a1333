"""From recordings of a real link to a profile: pings, delivery traces and traces of conditions."""
