"""One gateway in several processes of one machine, which share its client port, and slots through the ledger.

supervisor ... starts the workers, and starts one again that has ended
worker ....... one of them: a gateway that is steered by the process that started it
wire ......... how these processes ask each other
crew ......... what operators see and steer, of all workers together
merging, exposition ... what they say, put together
lifecycle .... how all of it starts and stops
"""
