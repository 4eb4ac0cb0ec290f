"""What the integrations with searches that already run share: a list re-ranked, and a proxy.

Evidence of relevance, labels, the order, and the amortised deficits of groups live here. The
HTTP routes and the proxy itself live in ``graph/service``.
"""
