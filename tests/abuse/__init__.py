"""What somebody who means harm would send, and what it may cost."""
