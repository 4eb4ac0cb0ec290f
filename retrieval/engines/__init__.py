"""The search engines that fairqr searches through."""
