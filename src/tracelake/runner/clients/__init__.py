"""Programs that run a user's handler inside of a sandbox. They are mounted there as files; nothing imports them."""
