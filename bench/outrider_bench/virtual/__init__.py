"""Virtual time: what a drafter guessed and a target wrote, taped once and replayed against links and hardware without
sleeping, through the client's own loops."""
