"""Attribution: finds out which documents an answer really used."""
