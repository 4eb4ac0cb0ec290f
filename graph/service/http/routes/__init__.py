"""The routes: what starts runs, what reads them, what lists the offers, and what operates."""
