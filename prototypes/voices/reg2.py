"""reg.py ARM SEED STEPS: log-mel to mouth; prints r on real clips (by shift) and on validation"""
import sys,time,math,torch,numpy as np,torch.nn as nn,torch.nn.functional as F
from avatar_v.media.sound import prepared
from avatar_v.models.audio import log_mel, mel_filters
torch.set_num_threads(1)
arm,seed,steps=sys.argv[1],int(sys.argv[2]),int(sys.argv[3])
FIL=mel_filters(80)
def feats(a): return log_mel(prepared(a.float()/32768 if a.dtype==torch.int16 else a)[None],FIL)[0].unflatten(0,(-1,4)).flatten(1)
def load(p,n=None):
    d=torch.load(p); a=d['audio'][:n]; return torch.stack([feats(x) for x in a]).half(), d['motion'][:n,:,:6]
import os
sets={'synth':[('synth.pt',400),('synth2.pt',800)],'half':[('synth.pt',400),('synth2.pt',200),('recorded2.pt',400),('recorded.pt',200)],'recorded':[('recorded.pt',400),('recorded2.pt',800)]}[arm.split('+')[0]]
parts=[]
for p,n in sets:
    c=p+'.feats'
    if not os.path.exists(c): torch.save(load(p),c)
    x,y=torch.load(c); parts.append((x[:n],y[:n]))
X=torch.cat([p[0] for p in parts]);Y=torch.cat([p[1] for p in parts]); torch.manual_seed(seed)
class Net(nn.Module):
    def __init__(s,w=96):
        super().__init__(); s.a=nn.Linear(320,w); s.c=nn.ModuleList(nn.Conv1d(w,w,3,padding=d,dilation=d) for d in (1,2,4,1)); s.n=nn.ModuleList(nn.GroupNorm(1,w) for _ in range(4)); s.o=nn.Linear(w,6)
    def forward(s,x):
        x=s.a(x).transpose(1,2)
        for c,n in zip(s.c,s.n): x=x+c(F.gelu(n(x)))
        return s.o(F.gelu(x).transpose(1,2))
net=Net(); opt=torch.optim.AdamW(net.parameters(),lr=2e-3,weight_decay=.05); t0=time.process_time(); B=24;L=64
W=torch.tensor([4.,1,1,1,1,1])
for i in range(steps):
    for g in opt.param_groups: g['lr']=2e-3*min(1,(i+1)/50)*(.02+.98*.5*(1+math.cos(math.pi*i/steps)))
    idx=torch.randint(len(X),(B,)); st=torch.randint(0,201-L,(B,))
    x=torch.stack([X[a,b:b+L] for a,b in zip(idx,st)]).float(); y=torch.stack([Y[a,b:b+L] for a,b in zip(idx,st)])
    if 'aug' in arm:
        # channel: smooth gain over mel bands, level, noise floor (log domain)
        e=F.interpolate(torch.randn(B,1,6),80,mode='linear',align_corners=True)*.35+torch.randn(B,1,1)*.2
        x=(x.unflatten(2,(4,80))+e[:,:,None]).flatten(2)
    x=x+.1*torch.randn_like(x)
    l=(((net(x)-y)**2)*W).mean(); opt.zero_grad(); l.backward(); opt.step()
net.eval()
def r(a,b):
    a=a-a.mean();b=b-b.mean();return float((a*b).sum()/(a.norm()*b.norm()+1e-9))
res={'arm':arm,'seed':seed,'cpu':time.process_time()-t0,'loss':float(l)}
with torch.no_grad():
    for v in ('synth','rec'):
        c=f'{v}_val.pt.feats'
        if not os.path.exists(c): torch.save(load(f'{v}_val.pt'),c)
        x,y=torch.load(c); o=net(x.float()); res['val_'+v]=float(np.mean([r(o[i,:,0],y[i,:,0]) for i in range(len(x))]))
    real=torch.load('real_audio.pt'); rows={}
    for k,d in real.items():
        o=net(feats(d['audio'])[None])[0,:,0]; m=d['motion'][:,0]; n=len(m)
        rows[k]={s:r(o[max(0,s):n+min(0,s)],m[max(0,-s):n+min(0,-s)]) for s in range(-6,7)}  # s>0: prediction later by s
        if 'keep' in sys.argv: res.setdefault('pred',{})[k]=o
    res['real']=rows
torch.save(res,f'res2_{arm}_{seed}.pt')
best=max(range(-6,7),key=lambda s:np.mean([v[s] for v in rows.values()]))
print(arm,seed,'cpu %.0f loss %.4f val synth %.3f rec %.3f | shift %d r %.3f | at 0 %.3f |'%(res['cpu'],res['loss'],res['val_synth'],res['val_rec'],best,np.mean([v[best] for v in rows.values()]),np.mean([v[0] for v in rows.values()])),' '.join('%s %.2f'%(k[-3:],v[best]) for k,v in rows.items()),flush=True)
