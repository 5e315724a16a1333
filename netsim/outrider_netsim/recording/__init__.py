"""Files about single packets of a link: a capture for Wireshark and a log in CSV."""
