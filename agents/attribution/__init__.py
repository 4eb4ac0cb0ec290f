"""Attribution: which documents an answer really used."""
