"""Makes the corpus notables from the facts of Pantheon 1.0; no part of fairqr.

``make notables PANTHEON=pantheon.tsv`` runs it. The README of the corpus has source and limits.
"""
