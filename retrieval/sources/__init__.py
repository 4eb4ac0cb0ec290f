"""Sources: where documents are, which groups they belong to, and the files that say so."""
