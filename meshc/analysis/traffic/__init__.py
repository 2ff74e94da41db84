"""What is sent between cores: channels, routes, colors, queues and turns."""
