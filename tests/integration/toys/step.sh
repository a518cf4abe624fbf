# A step of a toy's build: says that it has begun, and waits for as long as the test holds it.
#   sh step.sh NAME
[ ! -e "$HOME/stubborn" ] || trap '' INT TERM
: >"$HOME/at-$1"
while [ -e "$HOME/hold-$1" ]; do
    sleep 0.1
done
