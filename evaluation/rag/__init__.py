"""Fair RAG: measures of who is exposed and who is used, labels of utility, and experiments."""
