"""The search engines that fairqr stands in front of."""
