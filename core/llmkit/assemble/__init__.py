"""Where parts are chosen and joined: the only place that knows engine and front end alike."""
