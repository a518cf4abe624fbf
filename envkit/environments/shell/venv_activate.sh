# shellcheck shell=bash disable=SC2154
# Enter a virtual environment and the modules that it is on top of, in bash or zsh:
#   . DIR/bin/activate
# 'deactivate' leaves them. A line before this one sets envkit_venv, the folder.

if typeset -f deactivate >/dev/null; then
    deactivate
fi
if envkit_told=$("$envkit_venv/bin/envkit" activate --shell "${ZSH_VERSION:+z}${BASH_VERSION:+ba}sh" "$envkit_venv"); then
    eval "$envkit_told"
    unset envkit_told envkit_venv
    deactivate() {
        unset -f deactivate
        envkit_deactivate
    }
else
    unset envkit_told envkit_venv
    false
fi
