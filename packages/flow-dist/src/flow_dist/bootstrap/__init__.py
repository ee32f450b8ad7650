"""How the processes of a program find each other and learn their ranks.

In: variables of launchers, addresses, the user's secret. Out: rank, size and addresses.
Must not depend on collectives.
"""
