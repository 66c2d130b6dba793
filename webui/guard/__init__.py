"""What is between callers and Gradio: the routes the page needs, keys, bounds, and checks of what is sent."""
