"""Files of requests, over a real server and without one."""
