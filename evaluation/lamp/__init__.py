"""LaMP: tasks, files, prompts and metrics of personalised generation (Salemi et al. 2024)."""
