"""A real federation on Flower: the same rounds, learners and servers, with clients on other machines.

The only package that imports flwr, which is an optional extra. The server side is one executor behind the round loop
(`executor`, `members`, `wire`), the client side one workbench behind a few message handlers (`client`, `node`);
`messages` defines what may be sent between them.
"""
